"""From a message to the bytes of a record, with everything a broker adds on the way."""
