"""The compiled part of the client. Importing this package says what is missing if it isn't there."""

try:
    from gt._native import _capture as _capture
except ImportError as error:
    raise ImportError(
        f"GT's native part can't be loaded ({error}). It is compiled against the installed PyTorch: in a checkout run "
        "`make venv`, else install a wheel that was built for this PyTorch, or build one with g++ and the Python "
        "headers: pip install --no-build-isolation ."
    ) from error
