"""What stands behind each word of the command line. Modules are imported when their command runs, and never torch."""
