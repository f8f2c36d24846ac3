"""Widgets: lines drawn from rows, columns and a palette. They know no socket and no feed."""
