"""Starting, finding and ending clusters: connection files, local processes, the embedded cluster. Torch-free."""
