"""Tests that start the real command as a process, and real servers beside it."""
