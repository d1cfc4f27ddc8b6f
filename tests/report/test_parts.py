"""Parts of reports: what a page shows of them, and that no report of a golden store is without one."""

from __future__ import annotations

import re
from html import escape

import pytest
from support.golden import DAMAGED, case_named, opened

import mqstore
from mqstore.findings import Damage, Kind
from mqstore.report.checks import diagnosis_parts, usage_parts, verify_parts
from mqstore.report.html import ROWS, render
from mqstore.report.parts import Column, Fact, Findings, Headline, NextStep, Sentence, Sentences, Table, Tone, distinct

STORES = (case_named("4.9.3/b-kill9"), DAMAGED[0], case_named("3.10.8/b-dirty-journal"))


@pytest.mark.parametrize("case", STORES, ids=lambda case: case.id)
def test_every_check_of_either_family_has_its_headline_in_the_html(case):
    store = mqstore.open(opened(case))
    verified, diagnosed, used = store.verify(), store.diagnose(), store.usage()
    assert "mark long " in render(verify_parts(verified, 0.1))
    assert escape(diagnosed.next) in render(diagnosis_parts(diagnosed))
    page = render(usage_parts(used, None, 0.1))
    assert page.count("<table") == 1 + sum(bool(used.rows(by)) for by in used.shown_by)
    assert used.headline in page


def test_text_of_a_store_is_escaped_in_html():
    parts = [Headline("<b>"), Fact("a&b", "\x1b[2J"), Table([Column("<i>")], [["<script>"]], title='"')]
    assert render(parts) == (
        '<p class="sentence">&lt;b&gt;</p>\n<dl class="facts"><dt>A&amp;b</dt><dd>\\x1b[2J</dd></dl>\n'
        '<h2>&quot;</h2>\n<div class="scroll" role="region" tabindex="0" aria-label="&quot;"><table>'
        '<caption class="hidden">&quot;</caption><thead><tr><th scope="col">&lt;i&gt;</th></tr></thead><tbody>\n'
        "<tr><td>&lt;script&gt;</td></tr>\n</tbody></table></div>"
    )


def test_rows_and_sentences_beyond_those_shown_are_counted():
    rows = [[str(number)] for number in range(ROWS + 2)]
    page = render([Table([Column("n", right=True)], rows, shown=1), Sentences(["a", "b", "c"], 2)])
    assert '<table data-page="1">' in page
    assert "… 2 more" in page
    assert "… 1 more" in page
    assert f'<td class="n">{ROWS - 1}</td>' in page
    assert f">{ROWS}<" not in page


def test_a_folded_table_says_the_sums_of_each_fold_and_shows_its_rows_below():
    columns = [Column("file"), Column("messages", right=True), Column("bytes", right=True)]
    page = render([Table(columns, [["a", "1,000", "7"], ["b", "3", "5"], ["a", "2", "1"]], shown=20, fold="file")])
    first, second = re.findall(r"<details.*?</details>", page, re.DOTALL)
    assert "<summary>a: 2 rows, 1,002 messages, 8 bytes</summary>" in first
    assert first.count("<tr><td>a</td>") == 2
    assert "<summary>b: 1 row, 3 messages, 5 bytes</summary>" in second
    assert "<tr><td>a</td>" not in second


def test_a_cell_leads_to_the_page_of_what_it_names():
    table = Table([Column("topic", leads_to="topic"), Column("state", tone=lambda _: Tone.BAD)], [["a b", "lost"]])
    page = render([table], lambda kind, row: f"/{kind}?name={row[kind]}")
    assert '<a href="/topic?name=a b">a b</a>' in page
    assert '<span class="mark bad">lost</span>' in page


def test_findings_of_one_kind_in_one_file_are_one_group_of_which_three_are_shown():
    damage = [Damage("f", at, 1, Kind.BAD_FRAME, "why") for at in range(6)]
    (group,) = Findings(damage).groups
    listed, others = Findings.of_group(group)
    assert [item.offset for item in listed] == [0, 1, 2]
    assert others == "3 further findings of kind bad-frame in this file."
    assert Findings.of_group(group[:4]) == (group[:4], "")
    assert list(Findings(damage).kinds.rows) == [["bad-frame", "6", "6", "0"]]


def test_of_a_kind_in_many_files_the_further_files_are_one_sentence():
    damage = [Damage(f"queue{number}", at, 1, Kind.MISSING_QUEUE_ENTRY, "why") for number in range(8) for at in (0, 1)]
    *shown, further = Findings(damage).groups
    assert [Findings.of_group(group) for group in shown] == [(damage[at : at + 2], "") for at in range(0, 10, 2)]
    assert Findings.of_group(further) == ((), "6 further findings of kind missing-queue-entry in 3 other files.")
    assert [len(group) for group in Findings(damage[:12]).groups] == [2] * 6


def test_a_value_that_equals_the_one_above_it_is_not_repeated():
    columns = [Column("topic", once=True), Column("queue")]
    assert list(distinct(columns, [["a", "0"], ["a", "0"], ["b", "0"]])) == [["a", "0"], ["", "0"], ["b", "0"]]


def test_the_command_to_run_next_can_be_copied_from_a_page():
    page = render([NextStep("look.", ("mqstore verify 'a b'",))])
    assert page.startswith("<p>Next: look.</p><pre ")
    assert page.endswith(">mqstore verify &#x27;a b&#x27;</pre>")
    assert 'tabindex="0"' in page  # a long one scrolls, also by keyboard


def test_what_is_between_backticks_is_code_on_a_page():
    assert render([Sentence("the file `abort` is `<there>`")]) == "<p>the file <code>abort</code> is <code>&lt;there&gt;</code></p>"


def test_a_share_is_drawn_beside_its_figure():
    page = render([Table([Column("what"), Column("share", right=True)], [["bodies", "47.6 %"], ["none", "-"]])])
    assert '<td class="n">47.6 %</td><td><svg class="bar"' in page
    assert '<rect width="47.6" height="10"/>' in page
    assert '<rect width="0" height="10"/>' in page


def test_a_fact_without_a_name_continues_the_one_before_it():
    page = render([Fact("queues", "1 message"), Fact("", "2 further messages, see `mqstore verify`")])
    assert page == ('<dl class="facts"><dt>Queues</dt><dd>1 message</dd><dd>2 further messages, see <code>mqstore verify</code></dd></dl>')
