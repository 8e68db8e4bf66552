"""The effects of signals: of those to the whole job, and of those that have parts of tables read again."""
