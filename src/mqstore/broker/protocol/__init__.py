"""The remoting protocol: frames, headers, request codes and bodies."""
