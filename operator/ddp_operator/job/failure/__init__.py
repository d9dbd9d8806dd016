"""What failed, of which class, whose consequence it was, and what the job's rules, its budget and
its nodes have to do with it.
"""
