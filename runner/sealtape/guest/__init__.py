"""What runs inside the sandbox: the entry and its probes, the seams, the pytest plugin."""
