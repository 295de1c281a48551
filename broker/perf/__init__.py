"""The load generator of `slotmq perf`: a client of any AMQP 0-9-1 broker, with its own encoder and parser."""
