"""What signals do: those to the whole job, and those that read parts of tables again."""
