"""What speaks with agents: joins, reports in order, what to answer, who was heard when."""
