"""The rows, a module for each part of PyTorch; importing one registers its rows (``registry``)."""
