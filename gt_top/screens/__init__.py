"""Screens: one a file. They read the model at a tick and own no data."""
