"""`tidemark report`: facts.py reads a checkpoint, charts.py draws, page.py makes the page of one job, catalogue.py one about
many; write.py is the command."""
