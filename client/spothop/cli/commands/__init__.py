"""The commands, a module for each group. Everything heavy is imported inside them, so that
`spothop --help` is quick."""
