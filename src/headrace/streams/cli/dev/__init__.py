"""The command `headrace dev`: an application that is started again whenever a file is saved."""
