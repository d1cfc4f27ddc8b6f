%% Small helpers that run inside the real RabbitMQ 3.10.8 node (loaded by node.py).
%% They only call the broker's own code and print what it sees; no parsing of files here.
-module(oracle).
-export([serve/1, awake/0, peek/4, raw/5, rdq/2, info/2, add_vhost/1]).

%% positions of fields in #vqstate{} / #msg_status{} of 3.10.8 (element numbers)
-define(RAM_PENDING, 9).
-define(DISK_PENDING, 10).
-define(QI_PENDING, 11).

%% Evaluates expressions sent to a port of the loopback, each as 4 bytes of length and text; answers the same way with the value
%% in ~p. Started by the command line of the emulator (-run oracle serve PORT): a rabbitmqctl would cost a second for each question.
serve([Port]) ->
    spawn(fun () ->
                  {ok, L} = gen_tcp:listen(list_to_integer(Port), [binary, {packet, 4}, {active, false}, {ip, {127,0,0,1}}, {reuseaddr, true}]),
                  accept(L)
          end).

accept(L) ->
    {ok, S} = gen_tcp:accept(L),
    Pid = spawn(fun () -> receive go -> answer(S) end end),
    ok = gen_tcp:controlling_process(S, Pid),
    Pid ! go,
    accept(L).

answer(S) ->
    case gen_tcp:recv(S, 0) of
        {ok, Text} -> ok = gen_tcp:send(S, unicode:characters_to_binary(evaluate(binary_to_list(Text)))), answer(S);
        {error, _} -> ok
    end.

evaluate(Text) ->
    try
        {ok, Tokens, _} = erl_scan:string(Text),
        {ok, Exprs} = erl_parse:parse_exprs(Tokens),
        {value, V, _} = erl_eval:exprs(Exprs, []),
        io_lib:format("ok ~1000000tp", [V])
    catch C:R:T -> io_lib:format("no ~1000000tp", [{C, R, T}])
    end.

%% How many queue processes are not hibernating.
awake() ->
    length([Q || Q <- rabbit_amqqueue:list(), process_info(amqqueue:get_pid(Q), current_function) =/= {current_function, {erlang, hibernate, 3}}]).

hex(B) -> << <<(digit(N))>> || <<N:4>> <= B >>.
digit(N) when N < 10 -> $0 + N;
digit(N) -> $a + N - 10.

qpid(V, Q) ->
    {ok, R} = rabbit_amqqueue:lookup(rabbit_misc:r(V, queue, Q)),
    {R, amqqueue:get_pid(R)}.

%% All messages that are delivered and not acknowledged, as the queue process knows them:
%%   level seq msgid expiry size persistent location exchange rk,rk,...     (names in hex)
%% Prio: none or the priority level.
peek(V, Q, Prio, Out) ->
    {_, Pid} = qpid(V, Q),
    Me = self(), Ref = make_ref(),
    F = fun (Mod, S0) ->
                try
                    Pend = lists:append([gb_trees:to_list(element(E, S0)) || E <- [?RAM_PENDING, ?DISK_PENDING, ?QI_PENDING]]),
                    St = maps:from_list(Pend),
                    {ok, Fd} = file:open(Out, [write, raw, delayed_write]),
                    {_, S1} = Mod:ackfold(
                                fun (Msg, Seq, ok) -> ok = file:write(Fd, line(Prio, Seq, maps:get(Seq, St), Msg)) end,
                                ok, S0, lists:sort(maps:keys(St))),
                    ok = file:close(Fd),
                    Me ! {Ref, {ok, maps:size(St)}}, S1
                catch C:E1:T -> Me ! {Ref, {error, {C, E1, T}}}, S0
                end
        end,
    rabbit_amqqueue:run_backing_queue(Pid, rabbit_variable_queue,
                                      case Prio of none -> F; _ -> {Prio, F} end),
    receive {Ref, X} -> X after 600000 -> {error, timeout} end.

%% #msg_status: 2 seq 3 id 4 msg 5 persistent 6 delivered 7 location 8 index_on_disk 9 persist_to 10 props
line(Prio, Seq, MS, Msg) ->
    Props = element(10, MS),                    % {message_properties, Expiry, NeedsConfirming, Size}
    Loc = element(9, MS),                       % queue_index | msg_store | queue_store
    {basic_message, {resource, _, _, X}, Rks, _, Id, Persistent} = Msg,
    io_lib:format("~p ~p ~s ~p ~p ~p ~p x~s ~s~n",
                  [Prio, Seq, hex(Id), element(2, Props), element(4, Props), Persistent, Loc, hex(X),
                   lists:join(",", [["k", hex(R)] || R <- Rks])]).

%% Every entry the index code of 3.10.8 sees in one version 1 queue directory (a copy!), acked ones too:
%%   seq acked delivered persistent embedded msgid expiry size
raw(VHostDir, SegmentEntryCount, V, Q, Out) ->
    Me = self(),
    {P, Mon} = spawn_monitor(
      fun () ->
              put(segment_entry_count, SegmentEntryCount),
              {ok, Fd} = file:open(Out, [write, raw, delayed_write]),
              rabbit_queue_index:scan_queue_segments(
                fun (Seq, MsgOrId, Props, Pers, Del, Ack, ok) ->
                        {Emb, Id} = case MsgOrId of
                                        B when is_binary(B) -> {false, B};
                                        M -> {true, element(5, M)}
                                    end,
                        file:write(Fd, io_lib:format("~p ~p ~p ~p ~p ~s ~p ~p~n",
                           [Seq, Ack =:= ack, Del =:= del, Pers, Emb, hex(Id), element(2, Props), element(4, Props)]))
                end, ok, VHostDir, rabbit_misc:r(V, queue, Q)),
              ok = file:close(Fd), Me ! {self(), ok}
      end),
    receive {P, ok} -> erlang:demonitor(Mon, [flush]), ok;
            {'DOWN', Mon, process, P, R} -> {error, R}
    after 600000 -> {error, timeout} end.

%% The records rabbit_msg_file:scan/4 finds in one store file: "offset size msgid" lines; returns the scan end.
rdq(File, Out) ->
    {ok, H} = file_handle_cache:open(File, [raw, binary, read], [{read_buffer, 4194304}]),
    {ok, L, End} = rabbit_msg_file:scan(H, filelib:file_size(File),
                                        fun ({Id, T, Off, _}, A) -> [[integer_to_list(Off), " ", integer_to_list(T), " ", hex(Id), "\n"] | A] end, []),
    file_handle_cache:close(H),
    ok = file:write_file(Out, lists:reverse(L)),
    End.

info(V, Q) ->
    {R, _} = qpid(V, Q),
    rabbit_amqqueue:info(R, [messages_ready, messages_unacknowledged, messages_persistent, backing_queue_status]).

add_vhost(V) ->
    case rabbit_vhost:exists(V) of true -> ok; false -> rabbit_vhost:add(V, <<"oracle">>) end,
    rabbit_auth_backend_internal:set_permissions(<<"guest">>, V, <<".*">>, <<".*">>, <<".*">>, <<"oracle">>).
