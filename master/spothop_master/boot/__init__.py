"""How a VM of a cloud becomes one of ours: what it is sent, and what it fetches."""
