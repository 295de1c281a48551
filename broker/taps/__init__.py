"""Taps: copy the messages of an exchange into slot files, for readers with cursors."""
