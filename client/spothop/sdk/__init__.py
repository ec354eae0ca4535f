"""The SDK: what the CLI does, as typed calls (`client`), and its parts."""
