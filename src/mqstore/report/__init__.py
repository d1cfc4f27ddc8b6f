"""What a person is shown of a report: facts in, headlines, sentences and tables out; command line and console print the same."""
