"""The load generator of `slotmq perf`: a client of any AMQP 0-9-1 or MQTT broker, with codecs of its own."""
