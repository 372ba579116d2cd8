"""Operations on an application from outside: offsets, reset, skip, start checks, status."""
