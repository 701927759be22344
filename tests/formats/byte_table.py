"""Absmax of a block -> E8M0 byte, for each element and scale rule: the contract, as literals.

The bytes were derived from the definitions in exact rational arithmetic, apart from the code under
test: floor and ceiling of log2 for FLOOR and CEIL, the nearest number of m mantissa bits (halves
up) for EVEN, the smallest power of two not below fl32(absmax/largest) for RCEIL; subnormals have
the exponent field 0. ``next`` and ``prev`` are the float32 neighbours.
"""

from dataclasses import dataclass

RULES = ("floor", "ceil", "even", "rceil")

_TABLES = {
    "E4M3": """
        # absmax          float32      FLOOR CEIL EVEN RCEIL
        0                 0x00000000       0     0     0     0
        2^-149            0x00000001       0     0     0     0
        2^-128            0x00200000       0     0     0     0
        2^-127            0x00400000       0     0     0     0
        next(2^-127)      0x00400001       0     0     0     0
        prev(2^-126)      0x007fffff       0     0     0     0
        2^-126            0x00800000       0     0     0     0
        next(2^-126)      0x00800001       0     0     0     0
        2^-119            0x04000000       0     0     0     0
        448·2^-127        0x04600000       0     1     0     0
        next(448·2^-127)  0x04600001       0     1     0     0
        2^-118            0x04800000       1     1     1     1
        1                 0x3f800000     119   119   119   119
        next(1)           0x3f800001     119   120   119   119
        prev(2)           0x3fffffff     119   120   120   120
        prev(256)         0x437fffff     126   127   127   127
        prev(448)         0x43dfffff     127   128   127   127
        448               0x43e00000     127   128   127   127
        next(448)         0x43e00001     127   128   127   128
        480               0x43f00000     127   128   127   128
        prev(496)         0x43f7ffff     127   128   127   128
        496               0x43f80000     127   128   128   128
        prev(512)         0x43ffffff     127   128   128   128
        512               0x44000000     128   128   128   128
        2^127             0x7f000000     246   246   246   246
        FLT_MAX           0x7f7fffff     246   247   247   247
        Inf               0x7f800000     255   255   255   255
        NaN               0x7fc00000     255   255   255   255
    """,
    "E5M2": """
        # absmax          float32      FLOOR CEIL EVEN RCEIL
        0                 0x00000000       0     0     0     0
        2^-149            0x00000001       0     0     0     0
        2^-128            0x00200000       0     0     0     0
        2^-127            0x00400000       0     0     0     0
        next(2^-127)      0x00400001       0     0     0     0
        prev(2^-126)      0x007fffff       0     0     0     0
        2^-126            0x00800000       0     0     0     0
        next(2^-126)      0x00800001       0     0     0     0
        2^-119            0x04000000       0     0     0     0
        2^-118            0x04800000       0     0     0     0
        57344·2^-127      0x07e00000       0     1     0     0
        next(57344·2^-127) 0x07e00001       0     1     0     0
        1                 0x3f800000     112   112   112   112
        next(1)           0x3f800001     112   113   112   112
        prev(2)           0x3fffffff     112   113   113   113
        prev(256)         0x437fffff     119   120   120   120
        prev(448)         0x43dfffff     120   121   120   120
        448               0x43e00000     120   121   120   120
        next(448)         0x43e00001     120   121   120   121
        480               0x43f00000     120   121   121   121
        496               0x43f80000     120   121   121   121
        prev(512)         0x43ffffff     120   121   121   121
        512               0x44000000     121   121   121   121
        prev(57344)       0x475fffff     127   128   127   127
        57344             0x47600000     127   128   127   127
        next(57344)       0x47600001     127   128   127   128
        prev(61440)       0x476fffff     127   128   127   128
        61440             0x47700000     127   128   128   128
        prev(65536)       0x477fffff     127   128   128   128
        65536             0x47800000     128   128   128   128
        2^127             0x7f000000     239   239   239   239
        FLT_MAX           0x7f7fffff     239   240   240   240
        Inf               0x7f800000     255   255   255   255
        NaN               0x7fc00000     255   255   255   255
    """,
    "E3M2": """
        # absmax          float32      FLOOR CEIL EVEN RCEIL
        0                 0x00000000       0     0     0     0
        2^-149            0x00000001       0     0     0     0
        2^-128            0x00200000       0     0     0     0
        2^-127            0x00400000       0     0     0     0
        next(2^-127)      0x00400001       0     0     0     0
        prev(2^-126)      0x007fffff       0     0     0     0
        2^-126            0x00800000       0     0     0     0
        next(2^-126)      0x00800001       0     0     0     0
        28·2^-127         0x02600000       0     1     0     0
        next(28·2^-127)   0x02600001       0     1     0     0
        2^-119            0x04000000       4     4     4     4
        2^-118            0x04800000       5     5     5     5
        1                 0x3f800000     123   123   123   123
        next(1)           0x3f800001     123   124   123   123
        prev(2)           0x3fffffff     123   124   124   124
        prev(28)          0x41dfffff     127   128   127   127
        28                0x41e00000     127   128   127   127
        next(28)          0x41e00001     127   128   127   128
        prev(30)          0x41efffff     127   128   127   128
        30                0x41f00000     127   128   128   128
        prev(32)          0x41ffffff     127   128   128   128
        32                0x42000000     128   128   128   128
        prev(256)         0x437fffff     130   131   131   131
        prev(448)         0x43dfffff     131   132   131   131
        448               0x43e00000     131   132   131   131
        next(448)         0x43e00001     131   132   131   132
        480               0x43f00000     131   132   132   132
        496               0x43f80000     131   132   132   132
        prev(512)         0x43ffffff     131   132   132   132
        512               0x44000000     132   132   132   132
        2^127             0x7f000000     250   250   250   250
        FLT_MAX           0x7f7fffff     250   251   251   251
        Inf               0x7f800000     255   255   255   255
        NaN               0x7fc00000     255   255   255   255
    """,
    "E2M3": """
        # absmax          float32      FLOOR CEIL EVEN RCEIL
        0                 0x00000000       0     0     0     0
        2^-149            0x00000001       0     0     0     0
        2^-128            0x00200000       0     0     0     0
        2^-127            0x00400000       0     0     0     0
        next(2^-127)      0x00400001       0     0     0     0
        prev(2^-126)      0x007fffff       0     0     0     0
        2^-126            0x00800000       0     0     0     0
        next(2^-126)      0x00800001       0     0     0     0
        15/2·2^-127       0x01700000       0     1     0     0
        next(15/2·2^-127) 0x01700001       0     1     0     0
        2^-119            0x04000000       6     6     6     6
        2^-118            0x04800000       7     7     7     7
        1                 0x3f800000     125   125   125   125
        next(1)           0x3f800001     125   126   125   125
        prev(2)           0x3fffffff     125   126   126   126
        prev(15/2)        0x40efffff     127   128   127   127
        15/2              0x40f00000     127   128   127   127
        next(15/2)        0x40f00001     127   128   127   128
        prev(31/4)        0x40f7ffff     127   128   127   128
        31/4              0x40f80000     127   128   128   128
        prev(8)           0x40ffffff     127   128   128   128
        8                 0x41000000     128   128   128   128
        prev(256)         0x437fffff     132   133   133   133
        prev(448)         0x43dfffff     133   134   133   133
        448               0x43e00000     133   134   133   133
        next(448)         0x43e00001     133   134   133   133
        480               0x43f00000     133   134   133   133
        496               0x43f80000     133   134   134   134
        prev(512)         0x43ffffff     133   134   134   134
        512               0x44000000     134   134   134   134
        2^127             0x7f000000     252   252   252   252
        FLT_MAX           0x7f7fffff     252   253   253   253
        Inf               0x7f800000     255   255   255   255
        NaN               0x7fc00000     255   255   255   255
    """,
    "E2M1": """
        # absmax          float32      FLOOR CEIL EVEN RCEIL
        0                 0x00000000       0     0     0     0
        2^-149            0x00000001       0     0     0     0
        2^-128            0x00200000       0     0     0     0
        2^-127            0x00400000       0     0     0     0
        next(2^-127)      0x00400001       0     0     0     0
        prev(2^-126)      0x007fffff       0     0     0     0
        2^-126            0x00800000       0     0     0     0
        next(2^-126)      0x00800001       0     0     0     0
        6·2^-127          0x01400000       0     1     0     0
        next(6·2^-127)    0x01400001       0     1     0     0
        2^-119            0x04000000       6     6     6     6
        2^-118            0x04800000       7     7     7     7
        1                 0x3f800000     125   125   125   125
        next(1)           0x3f800001     125   126   125   125
        prev(2)           0x3fffffff     125   126   126   126
        prev(6)           0x40bfffff     127   128   127   127
        6                 0x40c00000     127   128   127   127
        next(6)           0x40c00001     127   128   127   128
        prev(7)           0x40dfffff     127   128   127   128
        7                 0x40e00000     127   128   128   128
        prev(8)           0x40ffffff     127   128   128   128
        8                 0x41000000     128   128   128   128
        prev(256)         0x437fffff     132   133   133   133
        prev(448)         0x43dfffff     133   134   133   134
        448               0x43e00000     133   134   134   134
        next(448)         0x43e00001     133   134   134   134
        480               0x43f00000     133   134   134   134
        496               0x43f80000     133   134   134   134
        prev(512)         0x43ffffff     133   134   134   134
        512               0x44000000     134   134   134   134
        2^127             0x7f000000     252   252   252   252
        FLT_MAX           0x7f7fffff     252   253   253   253
        Inf               0x7f800000     255   255   255   255
        NaN               0x7fc00000     255   255   255   255
    """,
    "INT8": """
        # absmax          float32      FLOOR CEIL EVEN RCEIL
        0                 0x00000000       0     0     0     0
        2^-149            0x00000001       0     1     0     0
        2^-128            0x00200000       0     1     0     0
        2^-127            0x00400000       0     1     0     0
        next(2^-127)      0x00400001       0     1     0     0
        127·2^-133        0x007f0000       0     1     1     0
        next(127·2^-133)  0x007f0001       0     1     1     1
        prev(2^-126)      0x007fffff       0     1     1     1
        2^-126            0x00800000       1     1     1     1
        next(2^-126)      0x00800001       1     2     1     1
        2^-119            0x04000000       8     8     8     8
        2^-118            0x04800000       9     9     9     9
        1                 0x3f800000     127   127   127   127
        next(1)           0x3f800001     127   128   127   127
        prev(127/64)      0x3ffdffff     127   128   127   127
        127/64            0x3ffe0000     127   128   127   127
        next(127/64)      0x3ffe0001     127   128   127   128
        prev(255/128)     0x3ffeffff     127   128   127   128
        255/128           0x3fff0000     127   128   128   128
        prev(2)           0x3fffffff     127   128   128   128
        2                 0x40000000     128   128   128   128
        prev(256)         0x437fffff     134   135   135   135
        prev(448)         0x43dfffff     135   136   135   135
        448               0x43e00000     135   136   135   135
        next(448)         0x43e00001     135   136   135   135
        480               0x43f00000     135   136   135   135
        496               0x43f80000     135   136   135   135
        prev(512)         0x43ffffff     135   136   136   136
        512               0x44000000     136   136   136   136
        2^127             0x7f000000     254   254   254   254
        FLT_MAX           0x7f7fffff     254   254   254   254
        Inf               0x7f800000     255   255   255   255
        NaN               0x7fc00000     255   255   255   255
    """,
}


@dataclass(frozen=True)
class Case:
    element: str
    absmax: str
    """Its name, for messages."""
    bits: int
    """The float32."""
    bytes: tuple[int, int, int, int]
    """By FLOOR, CEIL, EVEN, RCEIL."""


def _parsed(element: str, table: str) -> list[Case]:
    lines = [line.split() for line in table.strip().splitlines()]
    return [
        Case(element, name, int(bits, 16), tuple(map(int, found)))
        for name, bits, *found in lines
        if name != "#"
    ]


CASES = [case for element, table in _TABLES.items() for case in _parsed(element, table)]
