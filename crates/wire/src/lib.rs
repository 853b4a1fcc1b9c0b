//! The migration protocol: messages, framing, negotiation. Bytes in, messages out.
