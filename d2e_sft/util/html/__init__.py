"""The look of all HTML pages, tables and figures as markup."""
