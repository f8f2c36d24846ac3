"""What crosses a wire: messages and their codec. Knows no sockets, no torch, no clock.

``messages`` names every message and its fields, ``codec`` turns one into frames and back and refuses what is
malformed, ``words`` is the layout of the instruction words inside a batch, ``handshake`` says who may talk to whom.
"""
