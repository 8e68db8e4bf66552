"""The words everybody shares, and the checkpoint. Imports neither Spark nor a database driver."""
