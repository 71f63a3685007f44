# A distant disk as a file: no kernel USB on this side. VIA is for the refusals.
VIA=fuse
