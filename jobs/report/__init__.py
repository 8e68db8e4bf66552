"""`tidemark report`: facts.py reads a checkpoint, charts.py draws, page.py writes one HTML file; write.py is the command."""
