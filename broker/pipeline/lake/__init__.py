"""The lake: Delta tables of messages. See docs/pipeline-lake.md."""
