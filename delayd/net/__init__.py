"""What both front ends need of sockets: addresses, accepting, deadlines, TLS, peers."""
