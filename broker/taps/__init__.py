"""Taps: messages that an exchange routed, written into slot files for cursors to read."""
