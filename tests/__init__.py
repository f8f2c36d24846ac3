"""Tests of GT; see each folder's own docstring."""
