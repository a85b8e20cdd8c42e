"""Checks that users run in their own tests. Above every other floor: nothing in the package imports this."""

from __future__ import annotations

from streamshard.testing.resume import assert_resumes_exactly

__all__ = ["assert_resumes_exactly"]
