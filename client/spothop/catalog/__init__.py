"""VM types of the clouds: what they have, what they cost on demand, and which a job could take."""
