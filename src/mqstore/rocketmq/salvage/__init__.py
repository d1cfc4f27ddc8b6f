"""Salvage of RocketMQ logs: every whole record out of single files, nameless pieces and disk images."""
