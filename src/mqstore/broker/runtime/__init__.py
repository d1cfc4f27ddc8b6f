"""What request handlers share: settings, connections, clients, routes and counters."""
