"""Taps: write the messages that an exchange routes into slot files, for readers with cursors."""
