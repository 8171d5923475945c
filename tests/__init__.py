"""Tests; `tests.` names are importable from any of them."""
