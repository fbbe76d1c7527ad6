"""Between replicas: mail to the sessions of others, and what follows when one of them is no more."""
