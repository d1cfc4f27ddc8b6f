"""What commands share: output, options, filters, tables and progress."""
