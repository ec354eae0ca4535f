"""The SDK: what the CLI does, as typed calls (`client`), and what it stands on."""
