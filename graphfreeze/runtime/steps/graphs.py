def grow(draft, **options):
    raise NotImplementedError
