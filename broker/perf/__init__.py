"""The load generator of `slotmq perf`: a client of any AMQP 0-9-1 broker, with an encoder and parser of its own."""
