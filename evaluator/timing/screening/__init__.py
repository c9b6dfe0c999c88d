"""Judging two launches by the ranges that their samples span: screening, not proof."""
