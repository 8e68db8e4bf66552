"""The types that all packages share, and the checkpoint. Imports neither Spark nor a database driver."""
