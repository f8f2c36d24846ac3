"""PyTorch as the specification: the same code runs on the CPU and on ``mux``, and what comes out must be the same.

``features`` holds one row a feature of PyTorch, ``opinfo`` walks PyTorch's own operator database.
``python -m tests.conformance.run`` runs everything with progress and writes ``docs/conformance.md``; ``make test``
takes a sample.
"""
