"""What one processor drew, read on another: packages, tables, looks and releases that broke off."""
