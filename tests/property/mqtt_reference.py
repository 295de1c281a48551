"""A reference for the MQTT topic dialect, written from the specification."""


def mqtt_matches(topic_filter: str, topic: str) -> bool:
    """Return whether a well-formed topic filter matches a topic name. Source: MQTT 5.0, section 4.7."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False  # 4.7.2: the server MUST NOT match filters starting with a wildcard with names beginning with $
    for number, level in enumerate(wanted):
        if level == "#":
            return number <= len(levels)  # 4.7.1.2: the parent and any number of child levels
        if number >= len(levels) or level not in ("+", levels[number]):
            return False  # 4.7.1.3: one level only, which may be empty
    return len(wanted) == len(levels)


def is_topic_filter(text: str) -> bool:
    """Return whether a text is a well-formed topic filter. Source: MQTT 5.0, 4.7.1.2, 4.7.1.3 and 4.7.3."""
    levels = text.split("/")
    alone = all(level == "+" or "+" not in level for level in levels)
    last = all("#" not in level for level in levels[:-1]) and (levels[-1] == "#" or "#" not in levels[-1])
    return bool(text) and "\0" not in text and alone and last
