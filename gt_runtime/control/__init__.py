"""Control requests: what the dispatcher answers (``requests``) and the one client (``client``). Torch-free."""
